"""Whose answer it was: greedy answers compared exactly, token by token with their
logprobs.

Only answers that were computed alike are alike: with as many prompt tokens taken from
the cache."""

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
        sent = reversed(self.evidence.requests)
        answer = next((r for r in sent if r.label == label and r.answered), None)
        if answer is None:
            raise Missing(f"{label} was not answered")
        return answer

    def alone(self, picture: str) -> list[RequestRecord]:
        """In the gate: computed whole, and from the picture's own cache entry."""
        labels = [f"gate: {picture} {kind}" for kind in _ALONE]
        answered = {r.label: r for r in self.within("gate") if r.answered}
        if not answered.keys() & set(labels):
            raise Missing(f"{picture} alone was not answered")
        return [answered[label] for label in labels if label in answered]

    def differ(self, *pictures: str) -> Finding:
        """Whether each has an answer of its own, and the same one each time; it raises
        nothing."""
        try:
            alone = {picture: self.alone(picture) for picture in pictures}
        except Missing as missing:
            return Finding.of(False, str(missing))
        for picture, (first, *rest) in alone.items():
            if not rest:
                return Finding.of(False, f"{picture} was not answered twice")
            if not first.logprobs:
                return Finding.of(False, f"{picture}: the server gives no logprobs")
            if first.tokens != rest[0].tokens:
                apart = first_difference(first, rest[0])
                return Finding.of(
                    False, f"{picture} is not answered alike twice: {apart}"
                )
        for one, other in combinations(pictures, 2):
            if any(same(a, b) for a in alone[one] for b in alone[other]):
                return Finding.of(
                    False, f"{one} and {other} get one and the same answer"
                )
        return Finding.of(
            True, f"{', '.join(pictures)} alone: different answers, repeatable"
        )

    def whose(self, label: str, *pictures: str) -> str:
        """The first of ``pictures`` that was answered so when it was alone; "":
        none."""
        answer = self.to(label)
        likes = (p for p in pictures if any(same(answer, own) for own in self.alone(p)))
        return next(likes, "")

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

    def alike(self, one: str, other: str) -> bool:
        """Whether two requests got one and the same answer."""
        return same(self.to(one), self.to(other))

    def own(self, first: str, second: str) -> Finding:
        """Whether ``second``, sent after ``first``, got its own answer."""
        whose, text = self.after(first, second)
        return Finding.of(whose == second, text)

    def cached(self, label: str) -> int:
        """Prompt tokens that came from the cache.

        SGLang 0.5.6 reports nothing where it means zero. Nothing counts as zero only if
        the counter of the server agrees: what the answers report must add up to it."""
        reported = self.to(label).cached_tokens
        if reported is None:
            counted = self.evidence.facts.get(CACHED_TOTAL)
            if counted != sum(r.cached_tokens or 0 for r in self.evidence.requests):
                raise Missing(f"{label}: what came from the cache is unknown")
        return reported or 0

    def from_cache(self, *labels: str) -> str:
        """That of several requests, for people."""
        prompts = ((label, self.to(label).prompt_tokens) for label in labels)
        return "; ".join(
            f"{label}: {self.cached(label)} of {prompt}" for label, prompt in prompts
        )

    def more_than_text(self, text: str, *labels: str) -> Finding:
        """Whether each of ``labels`` took more from the cache than the request
        ``text``, which shared with the picture before it no more than the text that
        both begin with."""
        before = self.cached(text)
        more = all(self.cached(label) > before for label in labels)
        told = (
            f"from the cache: {self.from_cache(*labels)}; the text before the picture "
            "has"
        )
        return Finding.of(more, f"{told} {before}")


def same(one: RequestRecord, other: RequestRecord) -> bool:
    """The same answer, token by token and logprob by logprob; an empty one is like no
    other."""
    return (
        bool(one.logprobs)
        and one.tokens == other.tokens
        and one.logprobs == other.logprobs
    )


def first_difference(one: RequestRecord, other: RequestRecord) -> str:
    """Where two answers part, for people."""
    pairs = zip(one.tokens, one.logprobs, other.tokens, other.logprobs, strict=False)
    for place, (token, logprob, other_token, other_logprob) in enumerate(
        pairs, start=1
    ):
        if token != other_token:
            return f"token {place}: {token!r} against {other_token!r}"
        if logprob != other_logprob:
            return f"token {place}: logprob {logprob:.4f} against {other_logprob:.4f}"
    if len(one.tokens) != len(other.tokens):
        return f"{len(one.tokens)} against {len(other.tokens)} tokens"
    return "no difference"


def spelled(answer: RequestRecord) -> str:
    """An answer for people: its tokens, of which a byte-level model has strange
    ones."""
    return " ".join(repr(token)[1:-1] for token in answer.tokens) or answer.text
