"""The node's process as a whole: its lease, its clock, its disk, its peers and what it says about itself."""
