"""The name by which CronJobs start the rebalance job. Its code is the package `delayrebalance`."""
