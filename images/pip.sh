# Read by the steps of the Dockerfiles that reach an index (`. ./pip.sh`): what the builder gave as secrets, for pip. A
# secret that was not given is an empty file or none.
if [ -s /run/pip.conf ]; then export PIP_CONFIG_FILE=/run/pip.conf; fi
if [ -s /run/ca.pem ]; then export PIP_CERT=/run/ca.pem; fi
