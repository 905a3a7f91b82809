# Train a controller in one command; runs are kept in the volume esper-runs, and Ctrl-C saves:
#   docker build --tag esper . && docker run --rm -it --volume esper-runs:/runs esper
# Other commands come after the name: docker run --rm -it --volume esper-runs:/runs esper runs
# The dashboard listens on 127.0.0.1, which is the machine's own only with --network host:
#   docker run --rm -it --network host --volume esper-runs:/runs esper dashboard
FROM python:3.11-slim AS build
RUN apt-get update --quiet \
    && apt-get install --quiet --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN ESPER_REQUIRE_KERNELS=1 pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:3.11-slim
# The index of PyTorch's CPU builds, passed with --build-arg, makes the image much smaller.
ARG PIP_EXTRA_INDEX_URL=""
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    pip install --no-cache-dir --constraint /constraints.txt /wheels/*.whl
RUN useradd --create-home esper && mkdir /runs && chown esper /runs
USER esper
ENV ESPER_RUNS=/runs
WORKDIR /home/esper
ENTRYPOINT ["esper"]
CMD ["train"]
