"""The grader behind an HTTP address: what it is sent, and what it may answer.

It posts `{"sample", "item", "trace_id"}` and accepts a bare number or `{"score", "solved"?,
"hack"?, "sub_scores"?, "reason"?, "evidence"?}`; further keys are ignored.

    solved     by default, whether the score reaches `pass_threshold` (by default the range's high
               end)
    hack       true, or the reason: the rollout cheated. Its score is then the range's low end,
               whatever the reply says. "no", "false" and the like say that it did not cheat. A
               grader that reports hacks declares `reports_hacks` in grader.json. Then the gate can
               tell "none seen" from "none looked for"
    error      anything but null, false and "" means that the grader could not judge, even if a
               score came with it. The rollout is unscored
    score      must lie within grader.json's `range`. A score outside is never clipped: the rollout
               is unscored. If grader.json declares no range, it is a configuration error, which
               stops the stage before anything is learned from such scores
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Self

from rft import config, secrets
from rft.config.graders import TOOL_SERVER, Endpoint
from rft.grading.within import within
from rft.scale import Scale
from rft.types import Example, Grade, GradeStatus, RolloutContext, Scored, StopReason, Turn, Unscored, UnscoredStatus
from rft.wire import headers
from rft.wire.client import HttpClient, NoReply, Reply, ToolEndpoint, http_address
from rft.wire.contract import Envelope, Malformed, as_text, clip, grader_payload, read_json

_NO = frozenset({"", "no", "false", "none", "null", "n", "f", "0", "n/a"})
_YES = frozenset({"yes", "true", "y", "t", "1"})
"""Texts that are not a reason: a judge may write them where it was asked for true or false."""


class EndpointGrader:
    """`async with EndpointGrader(recipe.grader, endpoint, params.tools) as grader: await
    grader.grade(...)`.

    The key of our own server is sent only when the url names that server by {tool_server}.
    """

    def __init__(self, grader: Endpoint, endpoint: ToolEndpoint, section: config.Tools) -> None:
        self._url = http_address(
            grader.url.replace(TOOL_SERVER, endpoint.url),
            "grader.json: url",
            f"{TOOL_SERVER}/grade or https://host/grade",
        )
        self.scale = grader.scale
        self._declares_range = grader.declares_range
        self._headers, self._secrets = headers.resolve(grader.headers, "grader.json")
        self._raise_if_dead, self._rate = None, grader.rate_limit
        if grader.url.startswith(TOOL_SERVER):
            self._headers, self._secrets = endpoint.headers | self._headers, endpoint.secrets | self._secrets
            self._raise_if_dead = endpoint.raise_if_dead
        self._http = HttpClient(section)

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        self._target = self._http.target(
            self._url, self._headers, "grader.json", self._secrets, rate=self._rate, raise_if_dead=self._raise_if_dead
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.__aexit__(*exc)

    async def grade(
        self, example: Example, turns: Sequence[Turn], stop_reason: StopReason, context: RolloutContext
    ) -> Grade:
        """Raises only what stops the stage: our own server is dead, a key is refused, `range` is
        missing."""
        envelope = Envelope(context)
        payload = grader_payload(turns, stop_reason, envelope)
        try:
            grade, _ = await self._http.post(self._target, payload, envelope, "grade", self._read)
        except NoReply as failure:
            return Unscored(status_of(failure), f"grader: {failure}")
        return grade

    def _read(self, reply: Reply) -> Grade:
        """Raises Malformed for anything but a clean verdict; such a reply is retried like other
        failures."""
        if reply.status >= 400:
            raise Malformed(f"HTTP {reply.status}: {clip(reply.body)}")
        if reply.oversized:
            raise Malformed("the reply is larger than tools.max_reply_bytes")
        return _verdict(read_json(reply.body), self.scale, self._declares_range)


def status_of(failure: NoReply) -> UnscoredStatus:
    """Say why there is no verdict."""
    if failure.malformed:
        return GradeStatus.grader_bad_reply
    return GradeStatus.grader_timeout if failure.late else GradeStatus.infra_error


def _verdict(value: Any, scale: Scale, declares_range: bool) -> Grade:
    reply = value if isinstance(value, dict) else {"score": value}
    given = reply.get("reason")
    reason = "" if given is None else as_text(given)
    if hack := _hack(reply.get("hack"), reason):  # first: errors in the rest must not save a hack from its score
        texts = reply.get("evidence")
        return Scored(scale.low, GradeStatus.hack, False, {}, hack, evidence=_texts(texts) or ())
    if reply.get("error") not in (None, False, ""):
        beside = " beside its score" if "score" in reply else ""
        remedy = "A grader that can judge leaves 'error' out, and says why in 'reason'"
        raise Malformed(f"the reply has an 'error'{beside}: {_show(reply['error'])}. {remedy}")
    parts = reply.get("sub_scores") or {}
    if not isinstance(parts, dict):
        raise Malformed(f"'sub_scores' is {_show(parts)}, expected an object of numbers")
    components = {secrets.redact(name): _number(part, f"sub_scores.{name}") for name, part in parts.items()}
    if "score" not in reply:
        raise Malformed(f"the reply has no 'score': {_show(value)}")
    score = within(_number(reply["score"], "score"), scale, declares_range)
    if (evidence := _texts(reply.get("evidence"))) is None:
        raise Malformed(f"'evidence' is {_show(reply['evidence'])}, expected a list of texts")
    solved = reply.get("solved")
    if solved is not None and not isinstance(solved, bool):
        raise Malformed(f"'solved' is {_show(solved)}, expected true or false")
    passed = score >= scale.pass_threshold if solved is None else solved
    return Scored(score, GradeStatus.ok, passed, components, reason, evidence=evidence)


def _hack(value: Any, reason: str) -> str:
    """Return the explanation of a hack; empty if the rollout did not hack."""
    if value is None or value is False or (isinstance(value, str) and value.strip().lower() in _NO):
        return ""
    if value is not True and not isinstance(value, str):
        raise Malformed(f"'hack' is {_show(value)}, expected true, false or a reason")
    explained = as_text(value) if isinstance(value, str) and value.strip().lower() not in _YES else ""
    why = "; ".join(text for text in (explained, reason) if text)
    return f"hack: {why}" if why else "hack"


def _texts(value: Any) -> tuple[str, ...] | None:
    """Read a list of texts; None for anything else."""
    found = [] if value is None else value
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        return None
    return tuple(map(as_text, found))


def _number(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed(f"'{key}' is {_show(value)}, expected a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise Malformed(f"'{key}' is not finite")
    return number


def _show(value: Any) -> str:
    return clip(json.dumps(value).encode())
