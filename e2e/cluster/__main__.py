from e2e.cluster.cli import main

main()
