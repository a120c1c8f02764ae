"""Who a visitor is and what a request must prove: sessions, accounts, and the guard in front of every page."""
