"""What a running server says, asked over HTTP; whatever it answers, nothing raises."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from specsearch.config import EngineConfig
from specsearch.engines.sglang import SGLangEngine, SGLangServer
from specsearch.engines.sglang.effective import canonical_settings
from specsearch.engines.sglang.server import mean_accept_length
from specsearch.launch import LaunchPlan
from specsearch.search_space import Point
from tests.engines.contract import CHAIN, PLAIN, TREE, plan_of

DATA = Path(__file__).parent / "data"
TOKEN = "7-1-c0ffee"


def recorded(name: str) -> dict[str, object]:
    info: dict[str, object] = json.loads((DATA / name).read_text())
    return info


@dataclass
class FakeSGLang:
    """Answers what it is told to; a path without an answer is a 404."""

    answers: dict[str, tuple[int, str]] = field(default_factory=dict)
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    port: int = 0

    def says(self, path: str, answer: object, status: int = 200) -> None:
        self.answers[path] = (status, answer if isinstance(answer, str) else json.dumps(answer))


@pytest.fixture
def fake() -> Iterator[FakeSGLang]:
    fake = FakeSGLang()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            fake.seen.append((self.command, self.path, body))
            status, answer = fake.answers.get(self.path.partition("?")[0], (404, "not here"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer.encode())))
            self.end_headers()
            self.wfile.write(answer.encode())

        do_POST = do_GET

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        fake.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield fake
        server.shutdown()
        thread.join()


Asking = Callable[..., SGLangServer]


@pytest.fixture
def ask(fake: FakeSGLang) -> Asking:
    def make(point: Point = PLAIN, **changes: object) -> SGLangServer:
        limit = {"max_running_requests": 4 if changes.get("version") == "0.5.23" else 16}  # as the recorded servers
        args = {**limit, **changes.pop("args", {})}  # type: ignore[dict-item]
        settings = {"type": "sglang", "model": "/opt/models/target", "version": "0.5.17", "args": args, **changes}
        engine = SGLangEngine(EngineConfig(**settings))  # type: ignore[arg-type]
        return engine.server(plan_of(engine, point, port=fake.port, trial=TOKEN))

    return make


def test_only_the_server_with_the_token_of_this_launch_is_ours(fake: FakeSGLang, ask: Asking) -> None:
    """ME-01: another server on the port answers /health with 200 all the same."""
    fake.says("/health", "")
    fake.says("/server_info", {"model_path": "other", "port": fake.port, "weight_version": "default"})
    assert ask().is_healthy(5)
    assert not ask().is_ours()
    fake.says("/server_info", {"model_path": "other", "weight_version": TOKEN})
    assert ask().is_ours()


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, ""), (200, "<html>hello</html>"), (200, "[1, 2]"), (200, "null"), (404, "{}"), (500, "{}"), (200, '{"a": ')],
)
def test_a_bad_body_is_no_identity_and_no_error(fake: FakeSGLang, ask: Asking, status: int, body: str) -> None:
    """ME-03"""
    fake.says("/server_info", body, status)
    assert ask().identity(PLAIN) is None
    assert not ask().is_ours()


def test_the_older_path_is_asked_where_the_newer_one_says_nothing(fake: FakeSGLang, ask: Asking) -> None:
    """ME-03"""
    fake.says("/server_info", "", 200)
    fake.says("/get_server_info", {"weight_version": TOKEN, "version": "0.5.9"})
    assert ask().is_ours()
    identity = ask().identity(PLAIN)
    assert identity is not None
    assert (identity.version, identity.accept_length, identity.overridden) == ("0.5.9", None, ())


def test_nothing_that_listens_is_a_quiet_no(tmp_path: Path) -> None:
    plan = LaunchPlan(("python",), {}, tmp_path / "log", "http://127.0.0.1:9")
    server = SGLangServer(plan, SGLangEngine(EngineConfig("sglang", "/m")).rules)
    assert not server.is_healthy(1)
    assert not server.generates(1)
    assert not server.is_ours()
    assert not server.flush_cache()
    assert server.identity(PLAIN) is None
    assert server.decode_passes() is None
    server.abort_all()


def test_a_generation_must_bring_tokens(fake: FakeSGLang, ask: Asking) -> None:
    """ME-11: a healthy server that generates nothing is not ready."""
    fake.says("/generate", {"text": "", "output_ids": [], "meta_info": {}})
    assert not ask().generates(5)
    fake.says("/generate", {"text": "", "output_ids": [12], "meta_info": {}})
    assert ask().generates(5)
    sent = json.loads(fake.seen[-1][2])
    assert sent["sampling_params"]["temperature"] == 0
    fake.says("/generate", {"error": "out of memory"}, 500)
    assert not ask().generates(5)


def test_a_silent_generation_ends_at_its_time_limit(ask: Asking) -> None:
    """ME-11: accepted, never answered."""
    silent = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)  # listens, and nobody serves
    with silent:
        server = ask()
        plan = replace(server._plan, base_url=f"http://127.0.0.1:{silent.server_port}")
        assert not SGLangServer(plan, server._rules).generates(0.2)


def test_a_recorded_override_is_told_with_what_was_asked(fake: FakeSGLang, ask: Asking) -> None:
    """SM-02: 16 draft tokens were asked for at top-k 1, the server ran 4."""
    fake.says("/server_info", recorded("server_info_adjusted_0.5.17.json"))
    point = {**CHAIN, "draft_model": "/opt/models/drafter", "num_draft_tokens": 16, "cuda_graph_max_bs": 16}
    identity = ask(point).identity(point)
    assert identity is not None
    assert identity.overridden == ("num_draft_tokens: asked 16, runs 4",)
    assert identity.settings["speculative_num_draft_tokens"] == "4"
    assert identity.accept_length == pytest.approx(3.3, abs=0.2)


def test_a_server_that_runs_what_was_asked_overrides_nothing(fake: FakeSGLang, ask: Asking) -> None:
    fake.says("/server_info", recorded("server_info_tree_0.5.23.json"))
    point = {**TREE, "draft_model": "/models/eagle3", "num_draft_tokens": 8, "page_size": "unset"}
    identity = ask(point, version="0.5.23").identity(point)
    assert identity is not None
    assert identity.overridden == ()
    assert identity.version == "0.5.23"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"cuda_graph_config": {"decode": {"backend": "disabled"}}}, "cuda_graph: asked true, runs false"),
        ({"cuda_graph_config": None, "disable_cuda_graph": True}, "cuda_graph: asked true, runs false"),
        ({"disable_custom_all_reduce": True}, "custom_all_reduce: asked true, runs false"),
        ({"speculative_algorithm": None}, "speculative_algorithm: asked EAGLE3, runs none"),
        ({"speculative_draft_model_path": "/other"}, "draft_model: asked /opt/models/drafter, runs /other"),
    ],
)
def test_every_named_knob_is_compared_with_what_runs(
    fake: FakeSGLang, ask: Asking, change: Mapping[str, object], sentence: str
) -> None:
    fake.says("/server_info", {**recorded("server_info_adjusted_0.5.17.json"), **change})
    point = {**CHAIN, "draft_model": "/opt/models/drafter"}
    identity = ask(point).identity(point)
    assert identity is not None
    assert identity.overridden == (sentence,)


def test_fewer_requests_than_asked_for_are_told(fake: FakeSGLang, ask: Asking) -> None:
    """SM-04: memory may admit fewer than max_running_requests; beyond it requests queue."""
    info = recorded("server_info_plain_0.5.17.json")
    fake.says("/server_info", info | {"internal_states": [{"effective_max_running_requests_per_dp": 12}]})
    identity = ask().identity(PLAIN)
    assert identity is not None
    assert identity.overridden == ("max_running_requests: asked 16, runs 12",)
    fake.says("/server_info", info | {"internal_states": [{"effective_max_running_requests_per_dp": 8}] * 2})
    identity = ask().identity(PLAIN)
    assert identity is not None
    assert identity.overridden == ()


def key(fake: FakeSGLang, ask: Asking, info: Mapping[str, object], point: Point, **config: object) -> str:
    fake.says("/server_info", info)
    identity = ask(point, **config).identity(point)
    assert identity is not None
    return identity.key


def test_two_launches_of_one_configuration_have_equal_keys(fake: FakeSGLang, ask: Asking) -> None:
    info = recorded("server_info_plain_0.5.17.json")
    launch = {
        "port": 31999,
        "nccl_port": 28001,
        "weight_version": "8-1-beef",
        "launch_command": "…",
        "startup_time": {},
    }
    measured = {"max_total_num_tokens": 17, "internal_states": [], "forward_pass_metrics_ipc_name": "ipc:///tmp/x"}
    assert key(fake, ask, info, PLAIN) == key(fake, ask, {**info, **launch, **measured}, PLAIN)
    assert key(fake, ask, info, PLAIN) != key(fake, ask, {**info, "page_size": 64}, PLAIN)


def test_what_the_server_ignores_makes_no_other_configuration(fake: FakeSGLang, ask: Asking) -> None:
    """SM-03"""
    info = recorded("server_info_plain_0.5.17.json")
    four = {**info, "num_continuous_decode_steps": 4}
    assert key(fake, ask, info, PLAIN) == key(fake, ask, four, {**PLAIN, "num_continuous_decode_steps": 4})


def test_a_variable_makes_another_configuration_unless_the_server_sets_it_the_same_way(
    fake: FakeSGLang, ask: Asking
) -> None:
    """SM-08: unset is 0, and a forced variable is what it is forced to."""
    info = recorded("server_info_plain_0.5.17.json")
    low, simple = ({**PLAIN, "env.NCCL_PROTO": value} for value in ("LL", "Simple"))
    assert key(fake, ask, info, low) != key(fake, ask, info, simple)
    assert key(fake, ask, info, {**PLAIN, "env.NCCL_CUMEM_ENABLE": "0"}) == key(
        fake, ask, info, {**PLAIN, "env.NCCL_CUMEM_ENABLE": "unset"}
    )
    forced = {"args": {"enable_symm_mem": True}}
    off, on = ({**PLAIN, "env.NCCL_NVLS_ENABLE": value} for value in ("0", "1"))
    assert key(fake, ask, info, off, **forced) == key(fake, ask, info, on, **forced)
    assert key(fake, ask, info, off) != key(fake, ask, info, on)


def test_the_servers_own_word_on_its_environment_counts_more_than_the_request(fake: FakeSGLang, ask: Asking) -> None:
    """SM-08: where no table knows of the overwriting."""
    info = recorded("server_info_plain_0.5.17.json") | {"internal_states": [{"env_vars": {"NCCL_ALGO": "Ring"}}]}
    ring, tree = ({**PLAIN, "env.NCCL_ALGO": value} for value in ("Ring", "Tree"))
    assert key(fake, ask, info, ring) == key(fake, ask, info, tree)
    identity = ask(ring).identity(ring)
    assert identity is not None
    assert identity.environment == {"NCCL_ALGO": "Ring"}


def test_an_environment_that_cannot_be_read_is_none_and_never_the_requested_one(fake: FakeSGLang, ask: Asking) -> None:
    """SM-08"""
    fake.says("/server_info", recorded("server_info_plain_0.5.17.json"))
    identity = ask().identity({**PLAIN, "env.NCCL_ALGO": "Ring"})
    assert identity is not None
    assert identity.environment is None


@pytest.mark.parametrize(
    ("states", "length"),
    [
        ([{"avg_spec_accept_length": None}, {"avg_spec_accept_length": 2.90}, {}], 2.90),
        ([{"avg_spec_accept_length": 2.0}, {"avg_spec_accept_length": 3.0}], 2.5),
        (
            [
                {"avg_spec_accept_length": 2.0, "spec_verify_ct": 300},
                {"avg_spec_accept_length": 3.0, "spec_verify_ct": 100},
            ],
            2.25,
        ),
        ([{}, {}], None),
        ([], None),
        (None, None),
        ("none", None),
        ([None, 3], None),
        ([{"avg_spec_accept_length": True}], None),
    ],
)
def test_the_servers_accept_length_is_a_mean_of_those_who_tell_and_never_invented(
    states: object, length: float | None
) -> None:
    """ME-02: the answer of the case first."""
    assert mean_accept_length(states) == length


def test_settings_that_hold_the_trials_own_folder_are_left_out() -> None:
    info = {"crash_dump_folder": "/tmp/t0007/x", "page_size": 1, "_private": 1, "revision": None, "bs": [1, 2]}
    assert canonical_settings(info, tmpdir="/tmp/t0007") == {"page_size": "1", "bs": "1 2"}


def test_the_cache_is_flushed_with_patience_and_a_refusal_is_told(fake: FakeSGLang, ask: Asking) -> None:
    fake.says("/flush_cache", "Cache flushed.")
    assert ask().flush_cache()
    method, path, _ = fake.seen[-1]
    assert (method, path) == ("POST", "/flush_cache?timeout=10")
    fake.says("/flush_cache", "busy", 400)
    assert not ask().flush_cache()


def test_running_requests_are_aborted_all_together(fake: FakeSGLang, ask: Asking) -> None:
    fake.says("/abort_request", "")
    ask().abort_all()
    method, path, body = fake.seen[-1]
    assert (method, path, json.loads(body)["abort_all"]) == ("POST", "/abort_request", True)


def test_decode_passes_inside_and_outside_of_graphs_are_counted_over_all_ranks(fake: FakeSGLang, ask: Asking) -> None:
    text = (DATA / "metrics_0.5.17.txt").read_text()
    fake.says("/metrics", text)
    assert ask().decode_passes() == (1208.0, 0.0)
    more = 'sglang:cuda_graph_passes_total{mode="decode_none",tp_rank="1"} 1e+03\n'
    fake.says("/metrics", text + more)
    assert ask().decode_passes() == (1208.0, 1000.0)


@pytest.mark.parametrize("text", ["", "sglang:num_running_reqs 0.0\n", "<html>"])
def test_passes_that_are_not_counted_are_none(fake: FakeSGLang, ask: Asking, text: str) -> None:
    fake.says("/metrics", text)
    assert ask().decode_passes() is None


def test_a_proxy_for_the_way_out_is_not_asked(fake: FakeSGLang, ask: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    fake.says("/health", "")
    assert ask().is_healthy(5)
