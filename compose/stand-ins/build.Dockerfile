# The stand-in for a Python base at build time: its pip installs from the wheels in the image.
FROM dilaserve-base/python
COPY wheels /wheels
RUN printf '[global]\nno-index = true\nfind-links = /wheels\ndisable-pip-version-check = true\n' > /etc/pip.conf
