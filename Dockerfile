# Adds memlab to an image that contains PyTorch: docker build -t memlab . ; docker run --gpus all -v "$PWD:/work" memlab train.py
ARG BASE=pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime

FROM rust:1.95-bookworm AS wheel
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/*
WORKDIR /memlab
COPY . .
# Fits every base image with glibc 2.28 or newer.
RUN make wheel WHEEL_PLATFORM=manylinux_2_28

# hadolint ignore=DL3006
FROM ${BASE}
COPY --from=wheel /memlab/dist/ /tmp/memlab/
RUN pip install --no-cache-dir /tmp/memlab/*.whl && rm -r /tmp/memlab
WORKDIR /work
# Writes traces to the mounted folder.
ENTRYPOINT ["memlab", "run", "-o", "traces/", "--", "python"]
