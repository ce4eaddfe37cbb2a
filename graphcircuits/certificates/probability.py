"""placeholder"""

from graphcircuits.certificates.certificate import EdgeChances


def edge_chances(subject, circuit, found):
    return EdgeChances(came_back=found.came_back, probability=None, meaning="x")
