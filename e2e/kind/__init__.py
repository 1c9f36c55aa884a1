"""kind, as it is where Docker runs; else on podman as root, with a node image that is made on this machine.

Nothing of it comes from an image registry. kind, its base image's Dockerfile and the files in that image come from
kind's Go module, the packages from Debian, containerd, runc and Kubernetes from Go modules as e2e/cluster builds them.
"""
