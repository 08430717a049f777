"""The HTTP surface of SGLang 0.5.23."""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from specsearch.engines.simulated.arguments import VERSION
from specsearch.engines.simulated.logs import traceback_of
from specsearch.engines.simulated.metrics import exposition
from specsearch.engines.simulated.requests import DEFAULT_NEW_TOKENS, Request
from specsearch.engines.simulated.scheduler import Scheduler
from specsearch.engines.simulated.startup import Launch
from specsearch.engines.simulated.texts import seed_of, words_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_STARTING, _UP, _STOPPING = "Starting", "Up", "Stopping"
_HEALTH_TIMEOUT_S = 20.0
_HEALTH_POLL_S = 1.0  # SGLang looks for an answer once a second; scaled like loading
_OWN_VARIABLES = ("NCCL_", "SGLANG_", "CUDA_", "SPECSEARCH_")
_STRANGER: Mapping[str, object] = {
    "model_path": "/models/somebody-elses",
    "served_model_name": "somebody-elses",
    "weight_version": "default",
    "launch_command": "python -m sglang.launch_server --model-path /models/somebody-elses",
}
_FLUSHED = "Cache flushed.\nPlease check backend logs for more details.\n"
_NOT_FLUSHED = "Flush cache failed: there are running or waiting requests.\n"


class Web:
    """Handlers over one scheduler; /health says no before `open` and from `close` on."""

    def __init__(self, launch: Launch, scheduler: Scheduler) -> None:
        self._status = _STARTING
        self.launch = launch
        self.scheduler = scheduler
        self.streaming = 0  # answers under way: a server that drains waits for them
        self._generated = 0  # requests of clients
        self._started_s = time.time()

    def open(self) -> None:
        """Be healthy from now on."""
        self._status = _UP

    def close(self) -> None:
        """Be unhealthy from now on; what runs goes on."""
        self._status = _STOPPING

    def application(self) -> web.Application:
        """Every path that a study needs, and the deprecated spellings."""
        app = web.Application(middlewares=[self._access_log])
        both: dict[str, Handler] = {
            "/server_info": self.server_info,
            "/get_server_info": self.server_info,
            "/model_info": self.model_info,
        }
        gets = both | {
            "/get_model_info": self.model_info,
            "/health": self.health,
            "/health_generate": self.health,
            "/ready": self.ready,
            "/v1/models": self.models,
            "/v1/loads": self.loads,
            "/flush_cache": self.flush_cache,
        }
        if self.launch.resolved.args.enable_metrics:
            gets["/metrics"] = self.metrics
        posts: dict[str, Handler] = {
            "/generate": self.generate,
            "/flush_cache": self.flush_cache,
            "/abort_request": self.abort_request,
            "/set_internal_state": self.set_internal_state,
        }
        for path, handler in gets.items():
            app.router.add_get(path, handler)
        for path, handler in posts.items():
            app.router.add_post(path, handler)
        return app

    @web.middleware
    async def _access_log(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await handler(request)
        except web.HTTPException as error:
            response = error
        line = f'{request.remote}:0 - "{request.method} {request.path_qs} HTTP/1.1" {response.status} {response.reason}'
        self.launch.log.web(line)
        return response

    async def health(self, request: web.Request) -> web.Response:
        """200 once something was generated; a server that is busy generating is healthy without trying."""
        if self._status != _UP:
            return web.Response(status=503)
        faults = self.launch.faults
        if "health_but_no_generation" in faults or "child_dies" in faults:
            return web.Response()
        probe = self._request("", ("0",), {"max_new_tokens": 1, "ignore_eos": True}, internal=True)
        if not self.scheduler.busy:
            self.scheduler.submit(probe)
        deadline = asyncio.get_running_loop().time() + _HEALTH_TIMEOUT_S
        while asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_HEALTH_POLL_S * self.launch.simulation.time_scale)
            if probe.seen_tokens or self.scheduler.running:
                return web.Response()
        return web.Response(status=503)

    async def ready(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self._status == _UP else 503)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """One prompt, answered whole or as a stream."""
        try:
            body = await request.json()
            asked = self._asked(body)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return _refusal(str(error))
        self._generated += 1
        doom = self._doom()
        if doom == "error":
            asked.error = "simulated failure of this request"
        elif doom == "short":
            asked.last_token = max(1, asked.last_token // 2)
        if not self._is_stuck():
            self.scheduler.submit(asked)
        if doom == "abort":
            asyncio.get_running_loop().call_later(0.01, self.scheduler.abort, asked.rid)
        self.streaming += 1
        try:
            return await (self._stream(request, asked) if body.get("stream") else self._whole(asked))
        finally:
            self.streaming -= 1
            self.scheduler.forget(asked)

    def _asked(self, body: Mapping[str, object]) -> Request:
        if ("text" in body) == ("input_ids" in body):
            raise ValueError("Either text or input_ids should be provided.")
        sampling = body.get("sampling_params") or {}
        if not isinstance(sampling, Mapping):
            raise TypeError("sampling_params must be an object")
        ids = body.get("input_ids")
        prompt = " ".join(map(str, ids)) if isinstance(ids, list) else str(body["text"])
        request = self._request(prompt, tuple(words_of(prompt)), sampling)
        if body.get("rid"):
            request.rid = str(body["rid"])
        if len(request.prompt_ids) >= self.launch.resolved.args.context_length:
            raise ValueError(
                f"The input ({len(request.prompt_ids)} tokens) is longer than the model's context length "
                f"({self.launch.resolved.args.context_length} tokens)."
            )
        return request

    def _request(
        self, prompt: str, ids: tuple[str, ...], sampling: Mapping[str, object], *, internal: bool = False
    ) -> Request:
        degenerate = "degenerate_output" in self.launch.faults
        return Request(
            prompt=prompt,
            prompt_ids=ids,
            max_new_tokens=int(str(sampling.get("max_new_tokens", DEFAULT_NEW_TOKENS))),
            ignore_eos=bool(sampling.get("ignore_eos", False)),
            temperature=float(str(sampling.get("temperature", 1.0))),
            vocabulary=self.launch.machine.target.vocabulary,
            internal=internal,
            weight_version=self.launch.resolved.args.weight_version,
            seed=self.launch.seed,
            reply_word="data" if degenerate else None,
        )

    def _doom(self) -> str | None:
        """How a fault ends this request, or None."""
        faults = self.launch.faults
        crash = faults.get("dies_under_load")
        if crash and self._generated > crash.number("after_requests"):
            asyncio.get_running_loop().call_later(0.05, self._die_at_work)
        failing = faults.get("request_failures")
        draw = seed_of("failure", self.launch.seed, self._generated).random()
        return failing.text("how") if failing and draw < failing.number("share") else None

    def _die_at_work(self) -> None:
        error = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
        self.launch.crash(traceback_of(error), serving=True)

    def _is_stuck(self) -> bool:
        """Whether a fault keeps this request from ever being worked on."""
        faults = self.launch.faults
        hang, death = faults.get("health_but_no_generation"), faults.get("child_dies")
        if death and self._generated > death.number("after_requests"):
            asyncio.get_running_loop().call_later(death.number("after_s"), self.lose_a_child)
        return bool(hang and self._generated > hang.number("after_requests"))

    def lose_a_child(self) -> None:
        """A scheduler aborts below Python; the web server does not notice (RC-03)."""
        self.scheduler.frozen = True
        self.launch.tree.abort_one()

    async def _whole(self, asked: Request) -> web.Response:
        while asked.seen_finish is None:
            await asked.news()
        if asked.error:
            return _refusal(asked.error)
        return web.json_response(asked.answer())

    async def _stream(self, request: web.Request, asked: Request) -> web.StreamResponse:
        """What is published while a slow reader holds a chunk up goes into the next one."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        interval = max(1, self.launch.resolved.args.stream_interval)
        incremental = self.launch.resolved.args.incremental_streaming_output
        sent, finished = 0, False
        while not finished:
            await asked.news()
            finished = asked.seen_finish is not None or asked.error is not None
            if asked.error:
                await response.write(_event({"error": {"message": asked.error, "type": "internal", "code": 500}}))
            elif finished or not sent or asked.seen_tokens - sent >= interval:
                chunk = asked.answer(after=sent if incremental else 0)
                sent = asked.seen_tokens
                await response.write(_event(chunk))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def flush_cache(self, request: web.Request) -> web.Response:
        """Refused while something runs, after the asked time at the latest."""
        deadline = asyncio.get_running_loop().time() + float(request.query.get("timeout", 0))
        while not self.scheduler.flush():
            if asyncio.get_running_loop().time() >= deadline:
                return web.Response(text=_NOT_FLUSHED, status=400)
            await asyncio.sleep(0.01)
        self.launch.log.rank("Cache flushed successfully!")
        return web.Response(text=_FLUSHED)

    async def abort_request(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.scheduler.abort(None if body.get("abort_all") else str(body.get("rid", "")))
        return web.Response()

    async def set_internal_state(self, request: web.Request) -> web.Response:
        asked = (await request.json()).get("server_args", {})
        known = {"speculative_accept_threshold_single", "speculative_accept_threshold_acc", "pp_max_micro_batch_size"}
        return web.json_response({"updated": bool(asked) and set(asked) <= known})

    async def models(self, request: web.Request) -> web.Response:
        args = self.launch.resolved.args
        card = {
            "id": args.served_model_name,
            "object": "model",
            "root": args.model_path,
            "max_model_len": args.context_length,
        }
        return web.json_response({"object": "list", "data": [card]})

    async def model_info(self, request: web.Request) -> web.Response:
        args = self.launch.resolved.args
        info = {"model_path": args.model_path, "tokenizer_path": args.tokenizer_path, "is_generation": True}
        more = {"weight_version": args.weight_version, "architectures": [self.launch.machine.target.architecture]}
        return web.json_response(info | more)

    async def server_info(self, request: web.Request) -> web.Response:
        broken = self.launch.faults.get("bad_server_info")
        variant = broken.text("variant") if broken and self._generated >= broken.number("after_requests") else ""
        if variant == "missing":
            raise web.HTTPNotFound
        if variant == "html":
            return web.Response(text="<html><body>Welcome to nginx!</body></html>", content_type="text/html")
        info = self._server_info()
        if variant == "no_internal_states":
            del info["internal_states"]
        if "wrong_identity" in self.launch.faults:
            info |= _STRANGER
        return web.json_response(info)

    def _server_info(self) -> dict[str, object]:
        launch = self.launch
        args = dict(vars(launch.resolved.args))
        startup = {"load_weight": launch.load_s, "cuda_graph": dict(launch.captured_s)}
        return args | {
            "status": "ready" if self._status == _UP else "starting",
            "launch_command": " ".join(launch.command),
            "max_total_num_tokens": launch.memory.kv_tokens,
            "startup_time": startup,
            "internal_states": [self._internal_state(args, startup)],
            "version": VERSION,
            "frontend": "python",
        }

    def _internal_state(self, args: Mapping[str, object], startup: Mapping[str, object]) -> dict[str, object]:
        memory, scheduler = self.launch.memory, self.scheduler
        state = {
            **args,
            "last_gen_throughput": scheduler.last_throughput,
            "effective_max_running_requests_per_dp": scheduler.limits.running_requests,
            "startup_time": startup,
            "memory_usage": {
                "weight": memory.target_gb + memory.draft_gb,
                "kvcache": memory.kv_gb,
                "startup_available": memory.after_graphs_gb,
                "token_capacity": memory.kv_tokens,
                "graph": {"target_verify" if self.launch.machine.tree else "decode": memory.graph_gb},
            },
        }
        if scheduler.machine.tree is not None:
            state["speculative_num_steps"] = scheduler.machine.tree.num_steps
            state["speculative_num_draft_tokens"] = scheduler.machine.tree.num_draft_tokens
        if _is_on("SGLANG_RECORD_STEP_TIME"):
            state["step_time_dict"] = scheduler.step_times_s
        if scheduler.lifetime_accept_length is not None:
            state["avg_spec_accept_length"] = scheduler.lifetime_accept_length
        if _is_on("SGLANG_EXPOSE_OWN_ENV_VARS"):
            state["env_vars"] = {name: value for name, value in os.environ.items() if name.startswith(_OWN_VARIABLES)}
        return state

    async def loads(self, request: web.Request) -> web.Response:
        scheduler = self.scheduler
        load = {
            "num_running_reqs": len(scheduler.running),
            "num_waiting_reqs": len(scheduler.waiting),
            "num_used_tokens": scheduler.held_tokens,
            "max_total_num_tokens": scheduler.limits.kv_tokens,
            "token_usage": scheduler.usage,
            "gen_throughput": scheduler.last_throughput,
            "speculative": {"accept_length": scheduler.last_accept[0], "accept_rate": scheduler.last_accept[1]},
        }
        return web.json_response({"timestamp": time.time(), "version": VERSION, "loads": [load]})

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=exposition(self.scheduler, self.launch), content_type="text/plain")


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true")


def _event(value: Mapping[str, object]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _refusal(message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "BadRequestError", "code": 400}}, status=400)
