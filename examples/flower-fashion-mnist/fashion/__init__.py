"""Fashion-MNIST, divided by class among Flower clients that ADCS schedules."""
