"""Which of the operator's processes acts: leader election by a Lease (docs/decisions/0011-leader-election.md)."""
