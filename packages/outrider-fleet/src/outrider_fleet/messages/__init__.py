"""What ingress and replicas say to each other, checked before it is used."""
