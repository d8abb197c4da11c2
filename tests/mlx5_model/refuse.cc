#include "refuse.hpp"

#include <cstdio>
#include <cstdlib>

namespace mlx5_model {

void refuse(const std::string& what) {
    std::fprintf(stderr, "mlx5 model: %s\n", what.c_str());
    std::abort();
}

}  // namespace mlx5_model
