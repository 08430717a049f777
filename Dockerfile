# specsearch beside SGLang, in the official SGLang image.
#
#   docker build -t specsearch .
#   docker run --rm -it --init --gpus all --ipc=host --shm-size 32g \
#     -v /models:/models -v "$PWD/search_spaces:/search_spaces" -v "$PWD/results:/results" \
#     specsearch /search_spaces/kimi-k2.5-eagle3-8gpu.yaml --results /results/kimi
#
# --init reaps orphans; --ipc=host and --shm-size are what SGLang asks for. Without arguments the quick start runs.
# Another command: docker run --rm --entrypoint /opt/specsearch/bin/specsearch specsearch report /results/kimi
ARG SGLANG_TAG=v0.5.23
FROM lmsysorg/sglang:${SGLANG_TAG}

# The interpreter that has SGLang keeps its path whatever comes first on PATH later; without SGLang the build stops here.
RUN python3 -c "import importlib.metadata as m; print('SGLang', m.version('sglang'))" \
 && printf '#!/bin/sh\nexec %s "$@"\n' "$(command -v python3)" > /usr/local/bin/sglang-python \
 && chmod 755 /usr/local/bin/sglang-python

# An environment of its own: SGLang pins its packages exactly, and Ray or pyarrow beside them must not move one.
RUN python3 -m venv /opt/specsearch \
 || (apt-get update && apt-get install -y --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/* \
     && python3 -m venv --clear /opt/specsearch)

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY specsearch ./specsearch
RUN /opt/specsearch/bin/pip install --no-cache-dir .
# -L: the quick start in search_spaces is a link into the package.
COPY search_spaces ./search_spaces
RUN cp -rL search_spaces /search_spaces

# Results of a run without --results land in ./results.
WORKDIR /
ENTRYPOINT ["/opt/specsearch/bin/python", "-m", "specsearch.tune", "--engine-python", "/usr/local/bin/sglang-python"]
