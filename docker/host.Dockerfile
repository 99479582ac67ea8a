# A GPU host as the controller sees one: an SSH server and a python. Built on plain Python it is a simulated host (the
# simulated engine and its nvidia-smi come over SSH); built on an image with SGLang it is a real one.
ARG BASE=python:3.11.14-slim-bookworm
# hadolint ignore=DL3006
FROM ${BASE}
# The base image's tag fixes the distribution's release; its archive keeps no old versions that could be named here.
# The password '*' fits nothing, yet leaves the account unlocked: sshd turns locked ones away, keys or not.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends openssh-client openssh-server \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
    && useradd --create-home --home-dir /srv/sweep --uid 10001 --shell /bin/bash --password '*' sweep \
    && install -d /run/sshd \
    && install -d -o sweep -g sweep /keys/controller /keys/hosts
COPY docker/keys.sh docker/host.sh /usr/local/bin/
USER 10001
WORKDIR /srv/sweep
EXPOSE 2222
ENTRYPOINT ["/usr/local/bin/host.sh"]
CMD ["gpu-a"]
