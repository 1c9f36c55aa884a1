import os

from kubernetes import client, config

config.load_incluster_config()
api = client.CustomObjectsApi()
group, version = "delaycluster.io", "v1alpha1"
for kind in ("delayclusters", "delayshards"):
    for namespace in os.environ["NAMESPACES"].split(","):
        if namespace:
            found = api.list_namespaced_custom_object(group, version, namespace, kind, limit=100)
        else:
            found = api.list_cluster_custom_object(group, version, kind, limit=100)
        print(f"{len(found['items'])} {kind} in {namespace or 'all namespaces'}")
