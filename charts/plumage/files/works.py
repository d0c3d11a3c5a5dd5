"""What `helm test` runs, with the operator's own account: does it answer, and may it list pools? HEALTH NAMESPACE…"""

import os
import ssl
import sys
import urllib.error
import urllib.request

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
POOLS = "/apis/inference.plumage.dev/v1alpha1{where}/inferencepools?limit=1"


def answers(what, request, context=None):
    """Whether it is answered with 200; says why not."""
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            print("ok:", what, answer.status)
            return answer.status == 200
    except (urllib.error.URLError, OSError) as error:
        print("FAILED:", what, error)
        return False


def pools(namespace):
    """The request for one pool, in a namespace or in all."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    where = f"/namespaces/{namespace}" if namespace else ""
    host = f"[{host}]" if ":" in host else host
    request = urllib.request.Request(f"https://{host}:{port}{POOLS.format(where=where)}")
    with open(f"{ACCOUNT}/token") as token:
        request.add_header("Authorization", f"Bearer {token.read()}")
    return request


health, *namespaces = sys.argv[1:]
context = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
said = [answers("the operator is healthy", health)]
said += [answers(f"pools of {where or 'all namespaces'}", pools(where), context) for where in namespaces]
sys.exit(0 if all(said) else 1)
