# Two images from one tree:
#   docker build --target api -t tautrain-api .
#   docker build --target gpu-worker -t tautrain-gpu-worker .

FROM python:3.11-slim AS wheel
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY app app
COPY worker worker
COPY migrations migrations
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .


# The API and debug rollouts: no torch.
FROM python:3.11-slim AS api
ENV PYTHONUNBUFFERED=1
COPY requirements/api.txt /tmp/requirements.txt
RUN pip install --no-cache-dir -r /tmp/requirements.txt
COPY --from=wheel /wheels /tmp/wheels
RUN pip install --no-cache-dir --no-deps /tmp/wheels/*.whl && pip check \
    && useradd --uid 10001 --create-home tautrain \
    && install --directory --owner=tautrain --group=tautrain /data
# Bound to every address, it answers to each of them, and to these names of a container network.
ENV TAUTRAIN_HOST=0.0.0.0 \
    TAUTRAIN_PORT=8321 \
    TAUTRAIN_DATA_DIR=/data \
    TAUTRAIN_ALLOWED_HOSTS=api,tautrain-api,host.docker.internal
USER tautrain
WORKDIR /home/tautrain
VOLUME /data
EXPOSE 8321
HEALTHCHECK --interval=15s --timeout=5s --start-period=20s \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['TAUTRAIN_PORT'] + '/readyz', timeout=4)"]
ENTRYPOINT ["tautrain", "serve"]


# A worker that trains on the GPUs it is given. TAUTRAIN_URL says where the API is.
FROM nvidia/cuda:12.8.1-runtime-ubuntu24.04 AS gpu-worker
ENV PYTHONUNBUFFERED=1 \
    PATH=/opt/tautrain/bin:$PATH
# Triton compiles its launchers when they are first used: gcc and Python's headers stay.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev python3.12 python3.12-dev python3.12-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3.12 -m venv /opt/tautrain
COPY requirements/gpu.txt /tmp/requirements.txt
RUN pip install --no-cache-dir -r /tmp/requirements.txt
COPY --from=wheel /wheels /tmp/wheels
RUN pip install --no-cache-dir --no-deps /tmp/wheels/*.whl && pip check \
    && useradd --uid 10001 --create-home tautrain \
    && install --directory --owner=tautrain --group=tautrain /data
ENV TAUTRAIN_DATA_DIR=/data
USER tautrain
WORKDIR /home/tautrain
VOLUME /data
ENTRYPOINT ["tautrain", "worker"]
