#!/usr/bin/env bash
# Installs SGLang 0.5.23 for the CPU into a virtual environment: install.sh VENV. About 2 GB and 3 minutes.
# pip reports conflicts (SGLang pins a CUDA build of torch): expected. triton comes with xgrammar and goes again; shim/ stands in for it.
set -euo pipefail
venv=${1:?usage: install.sh VENV}
"${PYTHON:-python3}" -m venv "$venv"
pip="$venv/bin/python -m pip"
$pip install -q --upgrade pip
$pip install -q torch==2.13.0   # a CPU build is enough
$pip install -q --no-deps sglang==0.5.23
$pip install -q torch==2.13.0 transformers==5.19.0 tokenizers==0.23.2 aiohttp anthropic apache-tvm-ffi==0.1.11 compressed-tensors==0.18.0 einops \
  fastapi gguf interegular "llguidance<2.0.0,>=1.7.6" "mistral_common>=1.11.5" msgspec numpy nvidia-ml-py numba openai==2.8.0 \
  openai-harmony==0.0.4 orjson packaging partial_json_parser pillow prometheus-client psutil pybase64 pydantic python-multipart pyzmq \
  requests scipy sentencepiece==0.2.1 setproctitle tiktoken tqdm uvicorn uvloop watchfiles xgrammar==0.2.7 xxhash zstandard IPython \
  ninja outlines==0.1.11 py-spy dill regex distro soundfile==0.13.1
$pip uninstall -q -y triton || true
