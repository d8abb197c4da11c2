#include "connect/connector.hpp"

#include <fmt/format.h>

#include "connect/names_connector.hpp"
#include "connect/rdma_cm_connector.hpp"
#include "device/soft/soft_device.hpp"
#include "device/verbs/verbs_device.hpp"

namespace pollcore {

std::unique_ptr<Connector> make_connector(Device& device) {
    if (auto* soft = dynamic_cast<SoftDevice*>(&device)) {
        return std::make_unique<NamesConnector>(*soft);
    }
    if (dynamic_cast<VerbsDevice*>(&device) != nullptr) {
        return std::make_unique<RdmaCmConnector>(device);
    }
    throw Error(EINVAL, fmt::format("there is no way to make connections on {}", device.describe()));
}

}  // namespace pollcore
