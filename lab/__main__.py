import lab

print(lab.__doc__)
