"""A preview of the dashboards where Grafana is not at hand: layout from the JSON, figures from a live Prometheus.

It draws what the documentation's pictures show, and nothing else depends on it. It is not Grafana: fonts, colours and
details differ, and panels that ask Tempo are drawn as a frame with their query.
"""
