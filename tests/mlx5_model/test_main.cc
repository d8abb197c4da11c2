// The model's tests: the model is linked into the program, so the libraries' calls find the model's functions before
// the C library's functions.
#include <cstdlib>

#include <gtest/gtest.h>

int main(int count, char** arguments) {
    testing::InitGoogleTest(&count, arguments);
    // The model reads this number when a library first looks for devices. Tests remove the third and the last device.
    ::setenv("MLX5_MODEL_DEVICES", "4", 1);
    ::setenv("MLX5_MODEL", "hand", 1);
    ::unsetenv("MLX5_MODEL_LOSS");
    // Without this setting a program cannot free its objects on a removed device.
    ::setenv("RDMAV_ALLOW_DISASSOC_DESTROY", "1", 1);
    // libmlx5 prints each failed CQE to this file, by default to standard error.
    ::setenv("MLX5_DEBUG_FILE", "/dev/null", 1);
    return RUN_ALL_TESTS();
}
