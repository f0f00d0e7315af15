# The stand-in for the image `haproxy`: Debian's package, so its build needs the Debian mirror.
FROM dilaserve-base/python
RUN apt-get update && apt-get install --yes --no-install-recommends haproxy && rm -rf /var/lib/apt/lists/*
