"""Imposters of tool-arguments-dropped: calls that the model did not make, and other
losses."""

from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Outcome
from mmrepro.scenarios.tool_stream import ALONE, REPRODUCER, STREAMED, WHOLE

from imposters import Imposter
from imposters.vllm_edits import Edit, labelled, reproducer, unread

RUN, WITHOUT = "tool-arguments-dropped-0.33.0", "tool-arguments-dropped-not-streamed"
DIFFERENT, UNDECIDED = Outcome.DIFFERENT_FAILURE, Outcome.INCONCLUSIVE


def given(label: str, arguments: str) -> Edit:
    """The last call of an answer has these arguments."""

    def edit(incident: Incident) -> None:
        for record in labelled(incident, label):
            for choice in record.choices:
                choice.tool_calls[-1].arguments = arguments

    return edit


def no_calls(label: str) -> Edit:
    """The answer has no calls."""

    def edit(incident: Incident) -> None:
        for record in labelled(incident, label):
            for choice in record.choices:
                choice.tool_calls.clear()

    return edit


IMPOSTERS = [
    Imposter(
        "tools: the parser is sound",
        RUN,
        "other-cause",
        "the engine's own parser keeps the arguments: a proxy dropped them",
        reproducer(REPRODUCER, xlam_streamed='{"at": "moon"}'),
        DIFFERENT,
        ("hunyuan", "only-streamed"),
    ),
    Imposter(
        "tools: the script was not run",
        RUN,
        "absent-probe",
        "nobody asked the engine's own parser",
        unread(REPRODUCER),
        UNDECIDED,
        ("only-streamed",),
    ),
    Imposter(
        "tools: the model said so",
        RUN,
        "other-cause",
        "the model itself calls the second tool without arguments",
        given(WHOLE, "{}"),
        DIFFERENT,
        ("hunyuan",),
    ),
    Imposter(
        "tools: cut off",
        RUN,
        "other-cause",
        "the stream ended in the middle of the arguments",
        given(STREAMED, '{"at": "m'),
        DIFFERENT,
        ("hunyuan", "only-streamed"),
    ),
    Imposter(
        "tools: never streamed right",
        RUN,
        "other-cause",
        "the second call alone comes without arguments as well",
        given(ALONE, "{}"),
        DIFFERENT,
        ("dropped", "hunyuan", "only-streamed"),
    ),
    Imposter(
        "tools: no call at all",
        WITHOUT,
        "trigger-failed",
        "the parser is another one's: the calls stay in the text",
        no_calls(WHOLE),
        UNDECIDED,
        ("hunyuan",),
    ),
]
