"""The central scheduler: decides purely (policy, lifecycle), acts thinly (service), serves (api)."""
