"""A real multi-node Kubernetes on one Linux machine, without Docker or an image registry.

Every component is built from its Go module (etcd, the Kubernetes components, containerd, runc, CoreDNS, helm) or comes
from Debian (CNI plugins, podman). The control plane and each node run in network namespaces of their own with no way
out, so nothing leaves the machine:

    namespace kubelab-cp    10.89.0.1   bridge `fabric`; etcd, API server, controllers, scheduler, CoreDNS, kube-proxy
    namespace kubelab-n<i>  10.89.0.1<i>   containerd, kubelet, kube-proxy; pods in 10.244.<i>.0/24

Root on Debian 12 is needed, and Python's standard library only. Go 1.26 is fetched as a Go module where it is older.
"""
