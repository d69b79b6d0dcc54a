"""librdkafka's clients: settings, first contact, failures, clients that do not answer."""
