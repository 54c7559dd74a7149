"""Whose answer it was: greedy answers compared exactly, token by token with their
logprobs.

Only answers that were computed alike are alike: with as many prompt tokens taken from
the cache."""

from collections.abc import Sequence
from itertools import combinations

from mmrepro.failure.signature.decide import Finding
from mmrepro.failure.signature.views import Requests
from mmrepro.traffic.evidence import Missing, RequestRecord

_ALONE = ("alone", "again", "after others")
"""What the gate's requests with a picture are called: ``gate: A alone``, …"""
CACHED_TOTAL = "cached_tokens_total"
"""Fact of a run: the server's own count of prompt tokens that came from its cache."""


class ComparedAnswers(Requests):
    """What each picture was answered, and how much of its prompt came from the prefix
    cache.

    All but ``differ`` raise Missing where a request was not answered.
    """

    def to(self, label: str) -> RequestRecord:
        """The last answer to a request with exactly that label."""
        for request in reversed(self.evidence.requests):
            if request.label == label and request.answered:
                return request
        raise Missing(f"{label} was not answered")

    def alone(self, picture: str) -> list[RequestRecord]:
        """The gate's answers to a picture: computed whole, and from the picture's own
        cache entry."""
        # Of a request that was sent twice the last answer counts.
        answered = {r.label: r for r in self.within("gate") if r.answered}
        answers: list[RequestRecord] = []
        for kind in _ALONE:
            label = f"gate: {picture} {kind}"
            if label in answered:
                answers.append(answered[label])
        if not answers:
            raise Missing(f"{picture} alone was not answered")
        return answers

    def differ(self, *pictures: str) -> Finding:
        """Whether each has an answer of its own, and the same one each time; it raises
        nothing."""
        try:
            alone = {picture: self.alone(picture) for picture in pictures}
        except Missing as missing:
            return Finding.of(False, str(missing))

        for picture, answers in alone.items():
            why = _not_repeatable(picture, answers)
            if why:
                return Finding.of(False, why)
        for picture, other in combinations(pictures, 2):
            if _share_an_answer(alone[picture], alone[other]):
                return Finding.of(
                    False, f"{picture} and {other} get one and the same answer"
                )
        names = ", ".join(pictures)
        return Finding.of(True, f"{names} alone: different answers, repeatable")

    def whose(self, label: str, *pictures: str) -> str:
        """The first of ``pictures`` that was answered so when it was alone; "":
        none."""
        answer = self.to(label)
        for picture in pictures:
            if _share_an_answer([answer], self.alone(picture)):
                return picture
        return ""

    def after(self, first: str, second: str) -> tuple[str, str]:
        """Whose answer ``second`` got after ``first`` ("": neither's), and that for
        people."""
        label = f"{second} after {first}"
        whose = self.whose(label, second, first)
        if whose == second:
            return whose, f"{label}: {second}'s own answer"
        answer = self.to(label)
        text = f"neither {first}'s nor {second}'s answer"
        if whose:
            text = f"{first}'s answer, all {len(answer.tokens)} tokens and logprobs"
        apart = first_difference(answer, self.alone(second)[0])
        return whose, f"{label}: {text}; from its own it differs at {apart}"

    def alike(self, label: str, other: str) -> bool:
        """Whether two requests got one and the same answer."""
        return same(self.to(label), self.to(other))

    def own(self, first: str, second: str) -> Finding:
        """Whether ``second``, sent after ``first``, got its own answer."""
        whose, text = self.after(first, second)
        return Finding.of(whose == second, text)

    def cached(self, label: str) -> int:
        """Prompt tokens that came from the cache.

        SGLang 0.5.6 reports nothing where it means zero. Nothing counts as zero only if
        the counter of the server agrees: what the answers report must add up to it."""
        reported = self.to(label).cached_tokens
        if reported is not None:
            return reported
        total = sum(request.cached_tokens or 0 for request in self.evidence.requests)
        if self.evidence.facts.get(CACHED_TOTAL) != total:
            raise Missing(f"{label}: what came from the cache is unknown")
        return 0

    def from_cache(self, *labels: str) -> str:
        """What of the prompts of several requests came from the cache, for people."""
        shares: list[str] = []
        for label in labels:
            prompt = self.to(label).prompt_tokens
            shares.append(f"{label}: {self.cached(label)} of {prompt}")
        return "; ".join(shares)

    def more_than_text(self, text: str, *labels: str) -> Finding:
        """Whether each of ``labels`` took more from the cache than the request
        ``text``, which shared with the picture before it no more than the text that
        both begin with."""
        before = self.cached(text)
        more = all(self.cached(label) > before for label in labels)
        observed = (
            f"from the cache: {self.from_cache(*labels)}; the text before the picture "
            f"has {before}"
        )
        return Finding.of(more, observed)


def _not_repeatable(picture: str, answers: Sequence[RequestRecord]) -> str:
    """Why the answers to a picture that was alone prove nothing; "": they are alike."""
    first, *rest = answers
    if not rest:
        return f"{picture} was not answered twice"
    if not first.logprobs:
        return f"{picture}: the server gives no logprobs"
    if first.tokens != rest[0].tokens:
        difference = first_difference(first, rest[0])
        return f"{picture} is not answered alike twice: {difference}"
    return ""


def _share_an_answer(
    answers: Sequence[RequestRecord], others: Sequence[RequestRecord]
) -> bool:
    """Whether an answer of the one is an answer of the others, too."""
    return any(same(answer, other) for answer in answers for other in others)


def same(answer: RequestRecord, other: RequestRecord) -> bool:
    """The same answer, token by token and logprob by logprob; an empty one is like no
    other."""
    if not answer.logprobs:
        return False
    return answer.tokens == other.tokens and answer.logprobs == other.logprobs


def first_difference(answer: RequestRecord, other: RequestRecord) -> str:
    """The place at which two answers part, for people."""
    own_steps = zip(answer.tokens, answer.logprobs, strict=False)
    other_steps = zip(other.tokens, other.logprobs, strict=False)
    pairs = zip(own_steps, other_steps, strict=False)
    for place, (own_step, other_step) in enumerate(pairs, start=1):
        token, logprob = own_step
        other_token, other_logprob = other_step
        if token != other_token:
            return f"token {place}: {token!r} against {other_token!r}"
        if logprob != other_logprob:
            return f"token {place}: logprob {logprob:.4f} against {other_logprob:.4f}"
    if len(answer.tokens) != len(other.tokens):
        return f"{len(answer.tokens)} against {len(other.tokens)} tokens"
    return "no difference"


def spelled(answer: RequestRecord) -> str:
    """An answer for people: its tokens, of which a byte-level model has strange
    ones."""
    return " ".join(repr(token)[1:-1] for token in answer.tokens) or answer.text
