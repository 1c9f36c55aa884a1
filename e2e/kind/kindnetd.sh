#!/bin/sh
# Stands in for kindnetd, which the module proxy does not have: gives its node's pods addresses, and routes to the pods
# of the others. HOST_IP: the node's address, from kind's own manifest. CONTROL_PLANE_ENDPOINT: the API server's, for the
# address leads nowhere before kube-proxy has made its rules. The kernel forgets the routes with the node, so they are
# set again when it starts; a node that comes back with another address is an event of its Node.
set -eu
export KUBERNETES_SERVICE_HOST="${CONTROL_PLANE_ENDPOINT%:*}" KUBERNETES_SERVICE_PORT="${CONTROL_PLANE_ENDPOINT##*:}"

configure() { # the addresses of this node's pods
  cat >/etc/cni/net.d/new <<END
{
  "cniVersion": "0.4.0",
  "name": "kindnet",
  "plugins": [
    {
      "type": "ptp",
      "ipMasq": false,
      "ipam": {
        "type": "host-local",
        "dataDir": "/run/cni-ipam-state",
        "routes": [{"dst": "0.0.0.0/0"}],
        "ranges": [[{"subnet": "$1"}]]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
END
  mv /etc/cni/net.d/new /etc/cni/net.d/10-kindnet.conflist
}

while :; do
  kubectl get nodes --watch \
    --output 'jsonpath={.status.addresses[?(@.type=="InternalIP")].address} {.spec.podCIDR}{"\n"}' |
    while read -r address pods; do
      if [ -z "$pods" ]; then
        continue # the controller manager has not given it any yet; that is an event too
      elif [ "$address" = "$HOST_IP" ]; then
        configure "$pods"
      else
        ip route replace "$pods" via "$address" || echo "no route to $pods via $address" >&2
      fi
    done
  sleep 1
done
