// Allocates an entry of a map before the key is known. So a new object is not lost for lack of memory for its entry
// (D29).
//
// Thread safety: that of the map.
#pragma once

#include <utility>

namespace pollcore {

template <class Map>
class MapPlace {
public:
    /// Throws std::bad_alloc. If take() is not called, `value` is destroyed with this object.
    explicit MapPlace(Map& map, typename Map::mapped_type value = {}) : map_(map) {
        Map one;
        one.emplace(typename Map::key_type{}, std::move(value));
        node_ = one.extract(one.begin());
    }

    [[nodiscard]] typename Map::mapped_type& value() noexcept { return node_.mapped(); }
    /// Puts the value into the map. Call it once, with a key that the map does not have.
    void take(const typename Map::key_type& key) noexcept {
        node_.key() = key;
        map_.insert(std::move(node_));
    }

private:
    Map& map_;
    typename Map::node_type node_;
};

}  // namespace pollcore
