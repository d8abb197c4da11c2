// The model's tests: the model is linked into the program, so the libraries' calls meet its functions before
// the C library's.
#include <cstdlib>

#include <gtest/gtest.h>

int main(int count, char** arguments) {
    testing::InitGoogleTest(&count, arguments);
    // Read when devices are first looked for. The third and the last are removed by tests.
    ::setenv("MLX5_MODEL_DEVICES", "4", 1);
    ::setenv("MLX5_MODEL", "hand", 1);
    ::unsetenv("MLX5_MODEL_LOSS");
    // Without it a program cannot free its objects on a removed device.
    ::setenv("RDMAV_ALLOW_DISASSOC_DESTROY", "1", 1);
    // libmlx5 prints each failed CQE there, by default to standard error.
    ::setenv("MLX5_DEBUG_FILE", "/dev/null", 1);
    return RUN_ALL_TESTS();
}
