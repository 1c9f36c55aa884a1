"""`delayctl report`: what somebody who helps needs to see of a cluster, without messages and secrets."""
