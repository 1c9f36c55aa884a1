"""From loads to moves: the search, and what each move costs. Pure."""
