// The driver's functions are in the runtime's library; the driver's has nothing but its name.
