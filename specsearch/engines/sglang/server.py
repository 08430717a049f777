"""The HTTP surface of a running SGLang server; nothing it answers, and no silence, raises."""

import hashlib
import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence

from specsearch.engines._base import Identity
from specsearch.engines.sglang.flags import ENV, flag_of
from specsearch.engines.sglang.rules import ENV_DEFAULTS, INERT, SGLangRules
from specsearch.launch import LaunchPlan
from specsearch.search_space import ALGORITHM, UNSET, Point, Value

TOKEN_FLAG = "--weight-version"

# Settings that differ between two launches of the same configuration, or that say nothing about it.
_OF_THE_LAUNCH = frozenset(
    {
        *("port", "host", "nccl_port", "grpc_port", "dist_init_addr", "launch_command", "startup_time"),
        *("internal_states", "weight_version", "version", "status", "frontend", "kv_events"),
        *("max_total_num_tokens", "max_req_input_len"),  # measured from free memory, a little different each time
        *("forward_pass_metrics_ipc_name", "forward_pass_metrics_worker_id"),
    }
)
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

    def identity(self, point: Point) -> Identity | None:
        info = self._server_info()
        if info is None:
            return None
        settings = canonical_settings(info, self._plan.env.get("TMPDIR"))
        environment = _own_environment(info)
        version = info.get("version")
        return Identity(
            version=version if isinstance(version, str) else None,
            settings=settings,
            key=self._key(settings, point, environment),
            overridden=tuple(self._overridden(point, info)),
            accept_length=mean_accept_length(info.get("internal_states")),
            environment=environment,
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

    def _server_info(self) -> dict[str, object] | None:
        """The newer path first; the older one is deprecated but is all that some proxies and versions know."""
        for path in ("/server_info", "/get_server_info"):
            status, body = self._call(path, timeout_s=_INFO_TIMEOUT_S)
            info = _json_object(body) if status == 200 else None
            if info is not None or status is None:
                return info
        return None

    def _given(self, flag: str) -> str | None:
        argv = self._plan.argv
        return argv[argv.index(flag) + 1] if flag in argv else None

    def _key(self, settings: Mapping[str, str], point: Point, own: Mapping[str, str] | None) -> str:
        """Equal for equal effective configurations: inert settings do not count, forced variables count as forced."""
        counted = {name: value for name, value in settings.items() if name not in INERT}
        requested = self._rules.environment(point)
        forced = self._rules.forced(self._rules.settings(point))
        effective = {**ENV_DEFAULTS, **requested}
        effective |= {name: value or "forced" for name, (_, value) in forced.items() if name in effective}
        if own is not None:
            effective |= {name: own[name] for name in effective if name in own}
        text = json.dumps([counted, effective], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _overridden(self, point: Point, info: Mapping[str, object]) -> Iterator[str]:
        for name, asked in sorted(point.items()):
            if name.startswith(ENV) or asked == UNSET or name in INERT:
                continue
            runs = self._running(name, asked, info)
            if runs is not None and not _same(name, asked, runs):
                yield f"{name}: asked {_text(asked)}, runs {runs}"
        limit, admitted = self._given("--max-running-requests"), _admitted_requests(info)
        if limit is not None and admitted is not None and admitted < int(limit):
            yield f"max_running_requests: asked {limit}, runs {admitted}"

    def _running(self, name: str, asked: Value, info: Mapping[str, object]) -> str | None:
        """What the server runs for a knob; None when it does not say."""
        graphs = info.get("cuda_graph_config")
        decode = graphs.get("decode") if isinstance(graphs, dict) else None
        decode = decode if isinstance(decode, dict) else {}
        if name == "cuda_graph" and "backend" in decode:
            return _text(decode["backend"] != "disabled")
        if name == "cuda_graph_max_bs" and decode.get("max_bs") is not None:
            return _text(decode["max_bs"])
        if name == "cuda_graph_bs" and isinstance(decode.get("bs"), list):
            return _text(decode["bs"])
        flag = flag_of(name, self._rules.profile)
        value = info.get(flag)
        if value is None:
            return "none" if name == ALGORITHM and flag in info else None
        is_switch_off = flag.startswith("disable_") and flag != name
        return _text(not value if is_switch_off and isinstance(asked, bool) else value)

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


def canonical_settings(info: Mapping[str, object], tmpdir: str | None = None) -> dict[str, str]:
    """The settings of a server description that two launches of one configuration share, as text."""
    settings = {}
    for name, value in sorted(info.items()):
        if name in _OF_THE_LAUNCH or name.startswith("_") or value is None:
            continue
        text = _text(value)
        if not (tmpdir and tmpdir in text):
            settings[name] = text
    return settings


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


def _own_environment(info: Mapping[str, object]) -> dict[str, str] | None:
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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(name: str, asked: Value, runs: str) -> bool:
    words = " ".join(_text(asked).replace(",", " ").split()) if name == "cuda_graph_bs" else _text(asked)
    return words.lower() == runs.lower()


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        return " ".join(map(str, value))
    return json.dumps(value, sort_keys=True)
