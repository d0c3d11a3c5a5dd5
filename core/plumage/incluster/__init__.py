"""What a pod of a pool asks of its cluster's API server. Beside `plumage.directory` the only part of core that does
I/O: router and agent both need it and may not import one another. Needs the extra `kube`."""
