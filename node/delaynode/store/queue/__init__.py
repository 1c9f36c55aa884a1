"""What was released: the ConsumeQueue, consumer groups, dead letters, and the producers' numbering."""
