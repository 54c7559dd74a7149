"""What generated-placeholder sends, and when it sends again, to a server that is only
pretended."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from made_up import request
from mmrepro.base.records import Moment
from mmrepro.failure.signature import Truth
from mmrepro.failure.signature.views import Requests
from mmrepro.scenarios.chunked_mm_prefill import placeholder as mask
from mmrepro.traffic.drive import Drive
from mmrepro.traffic.evidence import RequestRecord
from mmrepro.traffic.evidence.recorder import Recorder

SCENARIO = mask.GeneratedPlaceholder()


class Scripted:
    """A server's side, without a server: all texts end while the first ``missed``
    images run."""

    def __init__(self, recorder: Recorder, missed: int, image_status: int) -> None:
        self.recorder, self.missed, self.image_status = recorder, missed, image_status
        self.images = 0
        self.release = asyncio.Event()
        self.tokens: list[int] = []
        self.texts: list[dict[str, Any]] = []

    async def chat(self, label: str, **more: Any) -> RequestRecord:
        record = request("trigger", label)
        record.sent = Moment.now()
        try:
            if label == mask.GENERATING:
                await self._generate(record, more)
            elif label == mask.IMAGE:
                await self._image(record)
        finally:
            record.latency_s = time.monotonic() - record.sent.mono
            self.recorder.request(record)
        return record

    async def raw(self, label: str, **_: Any) -> RequestRecord:
        record = request("trigger", label)
        self.recorder.request(record)
        return record

    def hold(self, _: object) -> None:
        pass

    async def _generate(self, record: RequestRecord, more: dict[str, Any]) -> None:
        self.tokens.append(more.pop("max_tokens"))
        self.texts.append(more)
        record.text = mask.PLACEHOLDER
        record.ttft_s = 0.0
        more["started"].set()
        await self.release.wait()

    async def _image(self, record: RequestRecord) -> None:
        self.images += 1
        if self.images <= self.missed:
            self.release.set()
            self.release = asyncio.Event()
        await asyncio.sleep(0.01)
        record.status = 200 if self.images <= self.missed else self.image_status


def triggered(path: Path, missed: int, status: int = 200) -> tuple[Scripted, Recorder]:
    recorder = Recorder(path)

    async def run() -> Scripted:
        server = Scripted(recorder, missed, status)
        drive = Drive(
            server, recorder, (28, 28), 2048, "0.12.0", deadline_s=5.0, suspect_s=5.0
        )  # type: ignore[arg-type]
        await SCENARIO.trigger(drive)
        return server

    return asyncio.run(run()), recorder


@pytest.mark.parametrize("missed", [0, 1, 3])
@pytest.mark.parametrize("status", [200, 500])
def test_an_image_that_no_text_outlived_is_followed_by_another(
    tmp_path: Path, missed: int, status: int
) -> None:
    server, recorder = triggered(tmp_path, missed, status)
    assert server.images == missed + 1
    said = mask.generated_beside(Requests(recorder.evidence))
    assert said.truth is Truth.MET, said.observed
    assert recorder.evidence.labelled(mask.IMAGE)[-1].status == status


def test_it_gives_up_after_some_images_and_says_so(tmp_path: Path) -> None:
    server, recorder = triggered(tmp_path, missed=99)
    assert server.images == mask.MAX_IMAGES == 8
    assert mask.generated_beside(Requests(recorder.evidence)).truth is Truth.NOT_MET


def test_the_texts_do_not_begin_with_the_same_length(tmp_path: Path) -> None:
    server, _ = triggered(tmp_path, missed=0)
    assert sorted(server.tokens) == [950, 1900]
    token = str(mask.MODEL.image_token_id)
    for sent in server.texts:
        assert (sent["stream"], sent["deadline_s"]) == (True, 120.0)
        assert sent["extra"] == {
            "logit_bias": {token: 100},
            "ignore_eos": True,  # else an answer ends before the image's
            "skip_special_tokens": False,  # else none of it is seen
        }
