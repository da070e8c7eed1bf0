"""x"""


def model_card(folder):
    return "# model\n"
