"""The service's pages for people: server-rendered, live through htmx, with charts by uPlot; nothing from elsewhere.

sessions     signing in: an API key exchanged for a signed cookie, and the token that each action must show
visitor      who looks at a page
page_route   errors as pages, and the headers that keep a page to itself
pages        templates
overview, solves, frontiers, plans, keys, sign_in, assets: the routes
"""
