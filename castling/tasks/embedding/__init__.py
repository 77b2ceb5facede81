"""Networks from pictures to vectors, without labels: what a conversion needs no more than pictures for."""
