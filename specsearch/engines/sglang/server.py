"""The HTTP surface of a running SGLang server; nothing it answers, and no silence, raises."""

import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence

from specsearch.engines._base import NO_LOG, Identity, LogFacts
from specsearch.engines.sglang.arguments.rules import SGLangRules
from specsearch.engines.sglang.effective import canonical_settings, effective_key, lesson, overridden
from specsearch.launch import LaunchPlan
from specsearch.search_space import Point

TOKEN_FLAG = "--weight-version"

_LARGEST_ANSWER = 64 * 2**20
_INFO_TIMEOUT_S = 10.0
_FLUSH_WAIT_S = 10  # how long the server waits to be idle
_ABORT_TIMEOUT_S = 5.0
_METRICS_TIMEOUT_S = 10.0
_PASSES = "sglang:cuda_graph_passes"
_PASSES_SAMPLE = re.compile(
    rf'^{_PASSES}(?:_total)?\{{[^}}]*\bmode="(?P<mode>decode_\w+)"[^}}]*\}} (?P<count>[0-9.eE+]+)', re.MULTILINE
)
# A proxy that serves the way out must not be asked for our own server.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class SGLangServer:
    """The server that a plan starts."""

    def __init__(self, plan: LaunchPlan, rules: SGLangRules) -> None:
        self._plan = plan
        self._rules = rules

    def is_healthy(self, timeout_s: float) -> bool:
        return self._call("/health", timeout_s=timeout_s)[0] == 200

    def generates(self, timeout_s: float) -> bool:
        request = {
            "text": "Count from one to ten: one, two,",
            "sampling_params": {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True},
        }
        status, body = self._call("/generate", timeout_s=timeout_s, body=request)
        answer = _json_object(body) if status == 200 else None
        return answer is not None and bool(answer.get("output_ids") or answer.get("text"))

    def identity(
        self, point: Point, *, log: LogFacts = NO_LOG, environment: Mapping[str, str] | None = None
    ) -> Identity | None:
        info = self._server_info()
        if info is None:
            return None
        environment = _exposed_environment(info) if environment is None else environment
        settings = canonical_settings(info, log.settings, self._plan.env.get("TMPDIR"))
        version = info.get("version")
        return Identity(
            version=version if isinstance(version, str) else None,
            settings=settings,
            key=effective_key(settings, self._rules, point, environment),
            overridden=(
                *overridden(point, self._rules, info, settings, environment),
                *self._fewer_requests(info),
            ),
            accept_length=mean_accept_length(info.get("internal_states")),
            environment=environment,
            most_requests=_admitted_requests(info),
            log_interval=_whole(info.get("decode_log_interval")),
            lesson=lesson(point, settings),
        )

    def is_ours(self) -> bool:
        """Only the server that carries the token of this launch; one that does not say is a stranger's."""
        info = self._server_info()
        token = self._given(TOKEN_FLAG)
        return info is not None and token is not None and info.get("weight_version") == token

    def flush_cache(self) -> bool:
        path = f"/flush_cache?timeout={_FLUSH_WAIT_S}"
        return self._call(path, timeout_s=_FLUSH_WAIT_S + 5, method="POST")[0] == 200

    def abort_all(self) -> None:
        self._call("/abort_request", timeout_s=_ABORT_TIMEOUT_S, body={"rid": "", "abort_all": True})

    def decode_passes(self) -> tuple[float, float] | None:
        status, body = self._call("/metrics", timeout_s=_METRICS_TIMEOUT_S)
        text = body.decode(errors="replace")
        if status != 200 or _PASSES not in text:
            return None
        inside = outside = 0.0
        for sample in _PASSES_SAMPLE.finditer(text):
            count = float(sample["count"])
            inside += count if sample["mode"] == "decode_cuda_graph" else 0.0
            outside += count if sample["mode"] == "decode_none" else 0.0
        return inside, outside

    def step_times_s(self) -> Mapping[int, Sequence[float]] | None:
        info = self._server_info()
        states = info.get("internal_states") if info else None
        first = states[0] if isinstance(states, list) and states else None
        times = first.get("step_time_dict") if isinstance(first, dict) else None
        if not isinstance(times, dict):
            return None
        told = {size: values for size, values in times.items() if str(size).isdecimal() and isinstance(values, list)}
        return {int(size): [float(value) for value in values if _is_number(value)] for size, values in told.items()}

    def _server_info(self) -> dict[str, object] | None:
        """The newer path first; the older one is deprecated but is all that some proxies and versions know."""
        for path in ("/server_info", "/get_server_info"):
            status, body = self._call(path, timeout_s=_INFO_TIMEOUT_S)
            info = _json_object(body) if status == 200 else None
            if info is not None or status is None:
                return info
        return None

    def _fewer_requests(self, info: Mapping[str, object]) -> Iterator[str]:
        limit, admitted = self._given("--max-running-requests"), _admitted_requests(info)
        if limit is not None and admitted is not None and admitted < int(limit):
            yield f"max_running_requests: asked {limit}, runs {admitted}"

    def _given(self, flag: str) -> str | None:
        argv = self._plan.argv
        return argv[argv.index(flag) + 1] if flag in argv else None

    def _call(
        self, path: str, *, timeout_s: float, body: Mapping[str, object] | None = None, method: str | None = None
    ) -> tuple[int | None, bytes]:
        """(HTTP status, body); no status when nothing answers in time, or not in HTTP."""
        request = urllib.request.Request(
            self._plan.base_url + path,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Content-Type": "application/json"} if body is not None else {},
            method=method,
        )
        try:
            with _OPENER.open(request, timeout=timeout_s) as response:
                return response.status, response.read(_LARGEST_ANSWER)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code, b""
        except (OSError, http.client.HTTPException, ValueError):
            return None, b""


def mean_accept_length(states: object) -> float | None:
    """The mean over the schedulers that say one, weighted by their verify steps where all of them count those.

    A cross-check only: each is an average over the server's life, and late by up to a log interval.
    """
    if not isinstance(states, list):
        return None
    told = [state for state in states if isinstance(state, dict) and _is_number(state.get("avg_spec_accept_length"))]
    if not told:
        return None
    counted = all(_is_number(state.get("spec_verify_ct")) and state["spec_verify_ct"] > 0 for state in told)
    weights = [float(state["spec_verify_ct"]) if counted else 1.0 for state in told]
    total = sum(weight * state["avg_spec_accept_length"] for weight, state in zip(weights, told, strict=True))
    return float(total / sum(weights))


def _admitted_requests(info: Mapping[str, object]) -> int | None:
    """How many requests run at once, which memory may limit below what was asked for."""
    states = info.get("internal_states")
    limits = [
        state.get("effective_max_running_requests_per_dp")
        for state in (states if isinstance(states, list) else [])
        if isinstance(state, dict)
    ]
    numbers = [limit for limit in limits if isinstance(limit, int)]
    return sum(numbers) if numbers and len(numbers) == len(limits) else None


def _exposed_environment(info: Mapping[str, object]) -> dict[str, str] | None:
    """The server's environment, which it tells only where SGLANG_EXPOSE_OWN_ENV_VARS=1 asks it to."""
    states = info.get("internal_states")
    first = states[0] if isinstance(states, Sequence) and not isinstance(states, str) and states else None
    variables = first.get("env_vars") if isinstance(first, dict) else None
    return {str(name): str(value) for name, value in variables.items()} if isinstance(variables, dict) else None


def _json_object(body: bytes) -> dict[str, object] | None:
    try:
        value = json.loads(body)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
