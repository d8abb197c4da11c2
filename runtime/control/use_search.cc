#include "control/use_search.hpp"

#include <optional>

namespace pollcore {

UseSearch::~UseSearch() {
    for (const Part& part : parts_) {
        part.proxy->ignore(part.search);
    }
}

bool UseSearch::over() {
    std::erase_if(parts_, [this](const Part& part) {
        const std::optional<bool> found = part.proxy->found(part.search);
        if (found.value_or(false)) {
            user_ = part.worker;
        }
        return found.has_value();
    });
    return parts_.empty();
}

}  // namespace pollcore
