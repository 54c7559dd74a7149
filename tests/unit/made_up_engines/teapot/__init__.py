"""An engine that does not exist: what one folder is enough for."""

from mmrepro.engines.base import Engine, LaunchRequest


class TeapotEngine(Engine):
    name = "teapot"
    module = "teapot.server"
    core_role = "Kettle"
    metrics = {"running": ("teapot:cups_being_poured",)}
    log_patterns = {"core-fatal": "the kettle is broken"}
    progress_pattern = "a cup was poured"
    log_mark = r"Teapot (?P<release>[\d.]+) is heating"

    def command(self, request: LaunchRequest) -> list[str]:
        return ["--leaves", str(request.model), "--port", str(request.port)]


ENGINE = TeapotEngine
