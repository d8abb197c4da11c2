#include "control/use_search.hpp"

#include <optional>

namespace pollcore {

UseSearch::~UseSearch() {
    for (const Part& part : parts_) {
        part.proxy->ignore(part.search);
    }
}

bool UseSearch::over() {
    for (std::size_t i = 0; i < parts_.size();) {
        const Part part = parts_[i];
        const std::optional<bool> found = part.proxy->found(part.search);
        if (found.value_or(false)) {
            user_ = part.worker;
        }
        if (found) {
            parts_.erase(parts_.begin() + static_cast<std::ptrdiff_t>(i));
        } else {
            ++i;
        }
    }
    return parts_.empty();
}

}  // namespace pollcore
