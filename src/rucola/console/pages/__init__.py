"""Pages: templates, texts in two languages, charts. They show values of views and decide nothing."""
